"""The fixed POSIX scripts behind `files`: values come as `$1`, `$2`, ..., never in the text.

They are constants so that an in-memory host can recognise them.
"""

from __future__ import annotations

# $1 path, $2 mode, $3 temporary name in the same directory, $4 size, $5 directory; then files
# that go once it is there.
# The size is compared because a connection that breaks looks like the end of the input.
WRITE = """\
export LC_ALL=C
umask 077
trap 'rm -f -- "$3"' EXIT
trap 'exit 129' HUP INT TERM PIPE
cat >"$3" || exit 1
got=$(wc -c <"$3") || exit 1
if [ "$got" -ne "$4" ]; then echo "input ended after $got of $4 bytes" >&2; exit 1; fi
chmod -- "$2" "$3" || exit 1
# Old `sync` takes no names and says so; only a failed sync is a failure.
said=$(sync "$3" 2>&1) || case $said in *"error syncing"*) echo "$said" >&2; exit 1;; esac
mv -f -T -- "$3" "$1" || exit 1
sync "$5" 2>/dev/null || :
shift 5
[ $# -eq 0 ] || rm -f -- "$@" || exit 1
"""

# $1 path.
READ = """\
export LC_ALL=C
exec cat -- "$1"
"""

# The paths. For each a line, its size or `-` where it is missing, then its bytes.
READ_MANY = """\
export LC_ALL=C
for path; do
  if [ ! -e "$path" ]; then
    said=$(cat -- "$path" 2>&1) || case $said in
      *"No such file or directory") echo -; continue ;;
      *) echo "$said" >&2; exit 1 ;;
    esac
  fi
  wc -c <"$path" && cat -- "$path" || exit 1
done
"""

# $1 mode, then the paths. A directory that is there keeps its mode.
MAKE_DIRS = """\
export LC_ALL=C
umask 022
mode=$1
shift
for path; do
  [ -d "$path" ] || mkdir -p -m "$mode" -- "$path" || exit 1
done
"""

# $1 target, $2 link, $3 temporary name in the link's directory.
LINK = """\
export LC_ALL=C
trap 'rm -f -- "$3"' EXIT
ln -s -- "$1" "$3" && mv -f -T -- "$3" "$2"
"""

# $1 partial directory, $2 directory, $3 parent, $4 name of the archive's last member.
# The last member is looked for because tar takes an input cut between two members for whole.
SEND_TREE = """\
export LC_ALL=C
umask 022
if [ -e "$2" ] || [ -L "$2" ]; then echo "exists already: $2" >&2; exit 17; fi
trap 'rm -rf -- "$1"' EXIT
trap 'exit 129' HUP INT TERM PIPE
mkdir -p -- "$3" && mkdir -- "$1" && tar -x -p -o -f - -C "$1" || exit 1
if [ ! -e "$1/$4" ]; then echo "input ended before the archive did" >&2; exit 1; fi
rm -f -- "$1/$4" || exit 1
mv -T -- "$1" "$2"
"""

# $1 parent of what goes, $2 its name, $3 the directory it must be below.
# Resolved on the host: a link among the parents must not lead outside.
REMOVE_TREE = """\
export LC_ALL=C
enter() {
  cd -P -- "$1" 2>/dev/null && return
  said=$(ls -d -- "$1/." 2>&1)
  case $said in *"No such file"*) exit 0 ;; *) echo "${said:-cannot enter $1}" >&2; exit 1 ;; esac
}
enter "$3"
root=$(pwd -P; echo x)
enter "$1"
here=$(pwd -P; echo x)
case ${here%?x}/ in
  "${root%?x}"/*) rm -rf -- "./$2" ;;
  *) echo "leads outside of $3" >&2; exit 18 ;;
esac
"""
