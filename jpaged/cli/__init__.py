"""The program `jpaged`: its commands and their flags."""
