"""Properties that Hypothesis tries hold on a busy machine, too: how long an example takes says nothing about them."""

from hypothesis import HealthCheck, settings

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
