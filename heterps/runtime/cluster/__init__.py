"""Engine `ray`: the same plan over many processes and machines, which goes on when one of them dies."""

from __future__ import annotations
