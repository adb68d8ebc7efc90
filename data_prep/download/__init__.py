"""Files over HTTP: whole or not there, continued after any interruption."""
