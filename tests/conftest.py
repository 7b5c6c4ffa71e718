"""Settings for all tests."""

import os

from hypothesis import settings

# In CI the same commit draws the same examples; at home every run looks somewhere new.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("home", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "home")
