#!/bin/sh
# The compiler launcher of build.sh --ci: ccache, with the objects of the release build, for a build folder two
# levels below a copy of the sources. CMake's unity files name sources by absolute paths, and ccache's key contains
# their text. So this script replaces the copy's path by the tree's (ATTN_TREE). ccache still compares the contents
# of the copy's files, because it keeps the paths of included files relative to the build folder. If an object is not
# in ccache, it is compiled from the tree's .cpp files, with the copy's headers.
copy=$(cd ../.. && pwd)
for word; do
  case $word in
    "$PWD"/*/Unity/unity_*_cxx.cxx) sed -i "\\|\"$PWD/|! s|\"$copy/|\"$ATTN_TREE/|" "$word" ;;
  esac
done
# Locales are part of the key too, and debhelper sets this one.
LC_ALL=$ATTN_LC_ALL
[ -n "$LC_ALL" ] || unset LC_ALL
exec ccache "$@"
