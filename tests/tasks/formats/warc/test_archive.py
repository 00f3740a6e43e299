import io

from tasks.formats.warc.archive import capture_at, captures


def test_captures_of_a_real_file_are_found_again_by_their_offset(shared_data):
    data = (shared_data / "warc" / "derived-a-v1.1.warc.gz").read_bytes()
    found = list(captures(io.BytesIO(data)))
    assert len(found) > 5
    for capture in found:
        assert capture_at(io.BytesIO(data), capture.offset) == capture
