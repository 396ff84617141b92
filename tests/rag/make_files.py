#!/usr/bin/env python3
"""make_files.py - write small documents of every type to a folder: make_files.py DIR [PAGES].

With PAGES also DIR/long.pdf of so many pages of text."""
import io, sys, zipfile, zlib

WORDS = ('licence model weight token cache server thread memory kernel vector index page chunk answer '
         'question document search result score query river mountain forest').split()


def pdf(pages, encode=True):
    """A PDF whose pages show lists of lines."""
    out, at = io.BytesIO(), []
    def obj(text):
        at.append(out.tell())
        out.write(b'%d 0 obj\n' % len(at) + text + b'\nendobj\n')
    out.write(b'%PDF-1.4\n')
    n = len(pages)
    obj(b'<< /Type /Catalog /Pages 2 0 R >>')
    obj(b'<< /Type /Pages /Count %d /Kids [%s] >>' % (n, b' '.join(b'%d 0 R' % (4 + 2 * i) for i in range(n))))
    obj(b'<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>')
    for i, lines in enumerate(pages):
        obj(b'<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R /Resources << /Font << /F 3 0 R >> >> >>' % (5 + 2 * i))
        text = b'BT /F 10 Tf 12 TL 50 740 Td ' + b' '.join(
            b'(' + l.encode('cp1252').replace(b'\\', b'\\\\').replace(b'(', b'\\(').replace(b')', b'\\)') + b") '" for l in lines) + b' ET'
        packed = zlib.compress(text)
        obj(b'<< /Length %d /Filter /FlateDecode >>\nstream\n' % len(packed) + packed + b'\nendstream')
    start = out.tell()
    out.write(b'xref\n0 %d\n0000000000 65535 f \n' % (len(at) + 1) + b''.join(b'%010d 00000 n \n' % o for o in at))
    out.write(b'trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n' % (len(at) + 1, start))
    return out.getvalue()


def archive(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, 'w', zipfile.ZIP_DEFLATED) as z:
        for name, text in members:
            z.writestr(name, text)
    return out.getvalue()


def docx(body):
    return archive([('[Content_Types].xml', '<Types/>'), ('word/document.xml',
        '<?xml version="1.0"?><w:document xmlns:w="w"><w:body>' + body + '</w:body></w:document>')])


def paragraph(text, style=''):
    style = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ''
    return f'<w:p>{style}<w:r><w:t xml:space="preserve">{text}</w:t></w:r></w:p>'


def lines_of(page):
    state = page * 2654435761 % 2**32
    lines = []
    for line in range(50):
        words = []
        for _ in range(11):
            state = (state * 1664525 + 1013904223) % 2**32
            words.append(WORDS[(state >> 16) % len(WORDS)])
        lines.append(f'{" ".join(words)} {page}-{line}.')
    return lines


def main():
    folder = sys.argv[1]
    def write(name, data):
        with open(f'{folder}/{name}', 'wb') as f:
            f.write(data)
    write('three.pdf', pdf([['First page: the harbour of Lisbon.'], ['Second page: caf\u00e9 and (brackets).'], ['Third page: a lighthouse at night.']]))
    write('scanned.pdf', pdf([[], []]))
    write('report.docx', docx(paragraph('Annual report', 'Title') + paragraph('Costs', 'Heading1') +
          paragraph('Fuel &amp; water rose by 3 %.') + '<w:tbl><w:tr><w:tc>' + paragraph('left') + '</w:tc><w:tc>' + paragraph('right') + '</w:tc></w:tr></w:tbl>'))
    write('bomb.docx', docx('<w:p><w:r><w:t>' + 'A' * (80 << 20) + '</w:t></w:r></w:p>'))
    write('letter.odt', archive([('mimetype', 'application/vnd.oasis.opendocument.text'), ('content.xml',
          '<office:document-content><office:automatic-styles><style:x>not shown</style:x></office:automatic-styles><office:body><office:text>'
          '<text:h text:outline-level="2">Greeting</text:h><text:p>Dear <text:span>reader</text:span>,<text:line-break/>the bridge is closed.</text:p>'
          '</office:text></office:body></office:document-content>')]))
    write('book.epub', archive([('mimetype', 'application/epub+zip'),
          ('META-INF/container.xml', '<container><rootfiles><rootfile full-path="OPS/book.opf" media-type="x"/></rootfiles></container>'),
          ('OPS/book.opf', '<package><manifest><item id="two" href="text/second%20one.xhtml"/><item id="one" href="first.xhtml"/></manifest>'
                           '<spine><itemref idref="one"/><itemref idref="two"/></spine></package>'),
          ('OPS/first.xhtml', '<html><head><title>No</title></head><body><h1>Chapter one</h1><p>A whale appears.</p></body></html>'),
          ('OPS/text/second one.xhtml', '<html><body><h1>Chapter two</h1><p>The whale is gone.</p></body></html>')]))
    if len(sys.argv) > 2:
        write('long.pdf', pdf([lines_of(p) for p in range(int(sys.argv[2]))]))


if __name__ == '__main__':
    main()
