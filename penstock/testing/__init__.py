"""What tests are made of: for users, to test their flows; for this package, the contracts of its backends."""
