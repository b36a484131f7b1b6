"""Other forms of a program that may convert better, compared with the conversion of the program as it is."""
