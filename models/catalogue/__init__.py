"""The named learners: a module here declares some as a tuple ``LEARNERS`` of
:class:`showerstack.models.base.spec.LearnerSpec`."""
