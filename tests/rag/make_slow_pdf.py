#!/usr/bin/env python3
"""make_slow_pdf FILE - a PDF of 1 kB whose one page has 15 million characters: pdftotext takes
many seconds for it."""
import sys, zlib

page = b'BT /F1 8 Tf ' + b'1 0 0 1 10 10 Tm (abcdefghij) Tj 3 4 Td ' * 1500000 + b'ET'
packed = zlib.compress(zlib.compress(page, 9), 9)
objects = [b'<</Type/Catalog/Pages 2 0 R>>', b'<</Type/Pages/Kids[3 0 R]/Count 1>>',
           b'<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>',
           b'<</Length %d/Filter[/FlateDecode/FlateDecode]>>stream\n%s\nendstream' % (len(packed), packed),
           b'<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>']
out, places = b'%PDF-1.4\n', []
for i, text in enumerate(objects):
    places.append(len(out))
    out += b'%d 0 obj%sendobj\n' % (i + 1, text)
table = b''.join(b'%010d 00000 n \n' % at for at in places)
with open(sys.argv[1], 'wb') as f:
    f.write(out + b'xref\n0 6\n0000000000 65535 f \n' + table + b'trailer<</Root 1 0 R/Size 6>>\nstartxref\n%d\n%%%%EOF' % len(out))
