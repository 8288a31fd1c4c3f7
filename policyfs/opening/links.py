"""A policy's surroundings as symbolic links stand now: where the places really are that its rules name."""

from __future__ import annotations

import dataclasses

from policyfs.host.ways import Walk
from policyfs.policy.paths import HostPath
from policyfs.policy.policy import Surroundings, named_places
from policyfs.policy.session import Session


def as_links_stand(session: Session, surroundings: Surroundings, walk: Walk) -> Surroundings:
    """The surroundings with what links now make of each place that the rules name. What they made of it before stays: the
    same object where nothing is new."""
    ways = dict(surroundings.ways)
    crossed = dict.fromkeys(surroundings.crossed)
    protected = dict.fromkeys(surroundings.protected)
    for file in surroundings.files:
        way = walk.to(file)
        protected |= dict.fromkeys((*way.links, *way.paths))
        crossed |= dict.fromkeys(way.crossed)
    waiting = named_places(session, surroundings)
    asked: set[HostPath] = set()
    while waiting:
        for place in waiting:
            way = walk.to(place)
            crossed |= dict.fromkeys(way.crossed)
            further = dict.fromkeys((*ways.get(place, ()), *way.paths))
            further.pop(place, None)
            if further:
                ways[place] = tuple(further)
        asked |= waiting
        waiting = set()
        if session.read_roots or session.write_roots:
            # Once it is known where a root is, it is a rule on a path of the view.
            waiting = named_places(session, dataclasses.replace(surroundings, ways=ways)) - asked
    new = (ways, tuple(crossed), tuple(protected))
    if new == (surroundings.ways, surroundings.crossed, surroundings.protected):
        return surroundings
    return dataclasses.replace(surroundings, ways=ways, crossed=tuple(crossed), protected=tuple(protected))
