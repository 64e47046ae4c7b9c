"""Static releases: tables of noisy counts as files, with a codebook, a privacy statement and checksums.

from dither.release.api import open_release

with open_release("release.yml") as release:
    print(release.quote().text)          # expected errors and cost; charges nothing and reads no record
    release.write("out")                 # one charge; after an interruption, the same call goes on
"""
