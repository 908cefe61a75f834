"""One module per command or group of commands, imported when it is called."""
