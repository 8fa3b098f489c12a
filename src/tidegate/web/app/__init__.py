"""The web application: routing, authentication, errors, and what every endpoint shares."""
