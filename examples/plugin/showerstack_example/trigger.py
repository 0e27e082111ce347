"""How clearly a shower triggered."""

from showerstack.features.groups import Feature, Group

GROUPS = (Group("trigger", "how clearly a shower triggered", sets=("all",)),)
FEATURES = (Feature("trigger_share", "1", "share of hit stations", "hits / stations", "this example", "trigger", 0, 1),)


def compute(fitted):
    """Return the features of this group, each (n,) float32."""
    events = fitted.events
    return {"trigger_share": fitted.xp.sum(events.electron_hit, axis=1) / events.array.n_stations}
