"""The configuration file's tables. Each setting is declared once, with its name, type, rule, documentation and
default."""
