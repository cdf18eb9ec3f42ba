"""To and from other people's environments: Gymnasium, OpenEnv, verifiers. Each imports its package where it is used."""
