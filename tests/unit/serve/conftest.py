import sys
from pathlib import Path

_STAGES = Path(__file__).parents[1]
sys.path[:0] = [str(_STAGES / "views"), str(_STAGES / "sockets")]
