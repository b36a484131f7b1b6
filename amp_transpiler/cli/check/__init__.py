"""`amp-transpile --check`: looks at the models of a repository, for its CI."""
