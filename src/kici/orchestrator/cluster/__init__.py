"""Several coordinators on one database: who lives, and who leads."""
