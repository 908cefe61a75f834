"""Every SQL statement, one module per aggregate. A function takes a connection whose transaction is the caller's."""
