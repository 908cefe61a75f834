import sys


def greet(names: list[str]) -> list[str]:
    return [f"Hello, {name}!" for name in dict.fromkeys(names)]


def main() -> None:
    print("\n".join(greet(sys.argv[1:])))


if __name__ == "__main__":
    main()
