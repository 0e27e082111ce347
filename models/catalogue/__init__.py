"""The named learners: a module here declares some as a tuple ``LEARNERS`` of :class:`models.spec.LearnerSpec`."""
