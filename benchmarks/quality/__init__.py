"""How good the tests are."""
