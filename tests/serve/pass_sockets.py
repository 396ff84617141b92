#!/usr/bin/env python3
"""Start a program as systemd does, with sockets in LISTEN_FDS.

usage: pass_sockets.py SOCKET... -- COMMAND...

SOCKET is tcp:ADDRESS (a free port), unix:PATH, udp, unheard (a stream socket that does not
listen), file, or none (a descriptor that is not open).
"""
import os
import socket
import sys


def open_socket(word):
    kind, _, where = word.partition(':')
    if kind == 'tcp':
        s = socket.socket(socket.AF_INET6 if ':' in where else socket.AF_INET)
        s.bind((where, 0))
        s.listen()
    elif kind == 'unix':
        s = socket.socket(socket.AF_UNIX)
        s.bind(where)
        os.chmod(where, 0o666)
        s.listen()
    elif kind == 'udp':
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.bind(('127.0.0.1', 0))
    elif kind == 'unheard':
        s = socket.socket()
        s.bind(('127.0.0.1', 0))
    else:
        return {'file': lambda: os.open('/dev/null', os.O_RDONLY), 'none': lambda: -1}[kind]()
    return s.detach()


at = sys.argv.index('--')
words, command = sys.argv[1:at], sys.argv[at + 1:]
held = [open_socket(w) for w in words]
held = [os.dup2(fd, 100 + i) if fd >= 0 else fd for i, fd in enumerate(held)]
for i, fd in enumerate(held):
    if fd < 0:
        os.closerange(3 + i, 4 + i)
    else:
        os.dup2(fd, 3 + i)              # inheritable
os.closerange(100, 100 + len(held))
names = ':'.join(w.partition(':')[0] for w in words)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(held)), LISTEN_FDNAMES=names)
os.execvp(command[0], command)
