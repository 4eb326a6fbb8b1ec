"""What is asked for, and how far it has got: requests, parameters, sequences and their groups."""
