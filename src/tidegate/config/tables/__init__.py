"""The tables of the configuration file. Each setting is declared once: name, type, rule, documentation and default."""
