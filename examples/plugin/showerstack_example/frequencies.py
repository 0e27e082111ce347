"""Class frequencies of the training events, whatever the event: what every other learner has to beat."""

import numpy as np

from showerstack.models.base.learner import Learner, check_training, select_table
from showerstack.models.base.spec import LearnerSpec

LEARNERS = (LearnerSpec("frequencies", f"{__name__}:Frequencies", "class frequencies", "fits"),)


class Frequencies(Learner):
    def fit(self, train, valid, *, seed, device="cpu", progress=None):
        check_training(train, valid, self.classes, table=True, grid=False)
        self.columns_, self.share_ = train.columns, np.bincount(train.labels, minlength=len(self.classes)) / len(train)
        return self

    def predict_log_proba(self, batch):
        select_table(batch, self.columns_)  # refuses events without these columns
        return np.tile(np.log(self.share_), (len(batch), 1))

    def save(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self.write_saved(folder, (), {"columns": self.columns_, "share": self.share_})

    @classmethod
    def load(cls, folder):
        learner, header = cls.from_saved(folder)
        learner.columns_, learner.share_ = tuple(header["columns"]), np.asarray(header["share"])
        return learner
