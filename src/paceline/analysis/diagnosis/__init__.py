"""Diagnosis of a trace: which rank is slow, how long others waited for it, and the step time without it."""
