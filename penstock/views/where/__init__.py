"""A reader asks for some rows of a view in SQL: the language of filters, compiled to Python."""
