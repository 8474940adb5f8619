"""What speeds Spark up by reaching into its internals; beneath each part is Spark's own way."""
