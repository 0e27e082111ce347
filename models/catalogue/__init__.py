"""The named learners: a module here declares some as a tuple ``LEARNERS`` of :class:`models.base.spec.LearnerSpec`."""
