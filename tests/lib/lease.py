"""lease.py - keep other processes from opening a file: lease.py FILE.

Prints a line when it has the lease; until this process ends, open() of the file waits, at most
/proc/sys/fs/lease-break-time (45 seconds).  Ends by itself after a minute."""
import fcntl
import signal
import sys

signal.signal(signal.SIGIO, signal.SIG_IGN)             # sent when another process waits
signal.alarm(60)
with open(sys.argv[1], 'r+b') as f:
    fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    print('leased', flush=True)
    signal.pause()
