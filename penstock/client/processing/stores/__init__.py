"""Where the work of a processor can be kept: a file of one machine, or a database that several share."""
