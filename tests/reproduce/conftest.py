"""Every experiment is made once, quickly, whichever tests look at it."""

from functools import cache

import pytest

from evenstep.reproduce.experiment import Settings
from evenstep.reproduce.experiments import EXPERIMENTS
from evenstep.reproduce.parts import Parts


@pytest.fixture(scope="session")
def result(tmp_path_factory):
    """Makes an experiment as --quick does, and returns what came out."""
    settings = Settings(quick=True, shared=Parts(tmp_path_factory.mktemp("trainings")))

    @cache
    def make(name):
        return EXPERIMENTS[name].run(settings, lambda share, text: None)

    return make
