"""Configs, data and records of experiments; nothing imports from here."""
