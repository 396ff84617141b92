#!/usr/bin/env python3
"""Start a server as systemd starts a service of Type=notify, and check its notifications.

usage: notify.py SOCKET COMMAND...
"""
import os
import signal
import socket
import subprocess
import sys
import urllib.request

at, command = sys.argv[1], sys.argv[2:]
heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
heard.bind(at)
heard.settimeout(120)
server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, 'NOTIFY_SOCKET': at, 'WATCHDOG_USEC': '4000000'})
try:
    seen = []

    def until(line):
        while True:
            seen.extend(heard.recv(4096).decode().split('\n'))
            if line in seen:
                return

    until('READY=1')
    url = server.stdout.readline().split()[2]
    with urllib.request.urlopen(url + '/health') as answer:
        assert answer.status == 200             # READY=1 came when the model was ready
    until('WATCHDOG=1')
    assert 'STOPPING=1' not in seen, seen
    server.send_signal(signal.SIGTERM)
    until('STOPPING=1')
    assert server.wait(120) == 0, server.returncode
finally:
    server.kill()
