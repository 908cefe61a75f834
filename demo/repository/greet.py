import sys


def greet(name: str) -> str:
    return f"Hello from {name}, this is kici"


if __name__ == "__main__":
    print(greet(sys.argv[1]))
