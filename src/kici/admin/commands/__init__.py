"""One module per command group, imported when the group is used."""
