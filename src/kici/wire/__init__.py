"""Messages between processes: one module per protocol, the codec, close codes, protocol range."""
