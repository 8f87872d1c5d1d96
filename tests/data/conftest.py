from hypothesis import settings

# machines that tests share are slow now and then, and that is no failure
settings.register_profile("shared machine", deadline=None, max_examples=60, database=None)
settings.load_profile("shared machine")
