"""The learning system: one class-incremental trial, in one process, given data.

>>> from gd_ray.trial import TrialSpec, run_trial
"""
