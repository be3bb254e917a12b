python=$(readlink /proc/$PPID/exe 2>/dev/null)
[ -x "$python" ] || python=python3
ray=$(sed -n 's#^[^/]*\(/.*\)/ray/_raylet[^/]*$#\1#p' /proc/$PPID/maps 2>/dev/null | head -n 1)
[ -n "$ray" ] && export PYTHONPATH="$ray${PYTHONPATH:+:$PYTHONPATH}"
raylet=$(sed -n 's/^PPid:[[:space:]]*//p' /proc/$PPID/status 2>/dev/null)
gcs=$(tr '\0' '\n' </proc/$raylet/cmdline 2>/dev/null | sed -n 's/^--gcs-address=//p')
[ -n "$gcs" ] && export RAY_ADDRESS="$gcs"
exec "$python" -B -c '%s' '%s'
