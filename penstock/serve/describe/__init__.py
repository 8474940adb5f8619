"""What describes the interface: the routes of data access, the schemas of all that is said, and the documents."""
