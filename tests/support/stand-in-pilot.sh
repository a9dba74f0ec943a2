#!/bin/sh
# Stands for the program in pods of one host: `install DIR` puts it there, `pilot NAME` does what STAND_IN says and then goes on until
# it is told to end. It ends by itself when its folder is gone, so that no failed test leaves it behind.
case $1 in
install) cp "$0" "$2/navigator.new" && mv "$2/navigator.new" "$2/navigator" ;;
pilot)
    trap 'exit 0' TERM
    eval "$STAND_IN"
    while [ -d "$NAVIGATOR_SHARED_DIR" ]; do sleep 0.3; done
    ;;
esac
