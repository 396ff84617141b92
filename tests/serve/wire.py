"""wire - HTTP responses and WebSockets on a bare socket, for the programs beside it."""
import socket, struct


def connect(port):
    s = socket.create_connection(('127.0.0.1', port), timeout=120)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def response(f, head=False):
    """Read the next response from a file; returns status, header fields and body."""
    line = f.readline()
    if not line:
        return None, {}, b''
    fields, body = {}, b''
    for raw in iter(f.readline, b'\r\n'):
        if not raw:
            raise EOFError('the head breaks off')
        k, _, v = raw.decode().partition(':')
        fields[k.lower()] = v.strip()
    if fields.get('transfer-encoding') == 'chunked':
        while (n := int(f.readline(), 16)):
            body += f.read(n)
            f.readline()
        f.readline()
    elif 'content-length' in fields and not head:
        body = f.read(int(fields['content-length']))
    return int(line.split()[1]), fields, body


class WebSocket:
    def __init__(self, port, path, key=b'dGhlIHNhbXBsZSBub25jZQ==', fields=b''):
        self.s = connect(port)
        self.f = self.s.makefile('rb')
        self.s.sendall(b'GET ' + path + b' HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n'
                       b'Sec-WebSocket-Key: ' + key + b'\r\n' + fields + b'\r\n')
        self.code, self.fields, _ = response(self.f)

    def send(self, data, opcode=1, fin=True, mask=b'abcd'):
        n = len(data)
        size = bytes([0x80 | n]) if n < 126 else b'\xfe' + struct.pack('>H', n) if n < 65536 else b'\xff' + struct.pack('>Q', n)
        self.s.sendall(bytes([(0x80 if fin else 0) | opcode]) + size + mask + bytes(b ^ mask[i & 3] for i,
                b in enumerate(data)))

    def receive(self):
        """Read a frame; returns opcode and payload, or raises EOFError if the connection has
        ended."""
        head = self.f.read(2)
        if len(head) < 2:
            raise EOFError('the connection has ended')
        n = head[1] & 127
        if n > 125:
            n = int.from_bytes(self.f.read(2 if n == 126 else 8), 'big')
        data = self.f.read(n)
        if len(data) < n:
            raise EOFError('a message breaks off')
        return head[0] & 15, data

    def close(self):
        self.f.close()
        self.s.close()
