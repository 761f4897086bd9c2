"""How good the algorithms are, on recorded data and in virtual time: nothing here measures speed."""
