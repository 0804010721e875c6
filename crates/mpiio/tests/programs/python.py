"""mpi4py: what one rank wrote another one reads, through views, all kinds of pointers and calls."""
import sys
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, ranks = comm.rank, comm.size
failures = 0


def check(found, expected):
    global failures
    if found != expected:
        failures += 1
        print(f"rank {rank}: {found!r} is not {expected!r}", file=sys.stderr)


file = MPI.File.Open(comm, sys.argv[1], MPI.MODE_CREATE | MPI.MODE_RDWR)
vector = MPI.BYTE.Create_vector(20, 50, 50 * ranks).Commit()
file.Set_view(rank * 50, MPI.BYTE, vector)
for step in range(20):
    data = bytes([65 + (step + rank) % 26]) * 50
    if step % 2:
        file.Write(data)
    else:
        file.Iwrite(data).Wait()
comm.Barrier()
file.Set_view()
check(file.Get_size(), 20 * 50 * ranks)
back = bytearray(50)
for record in range(20 * ranks):
    status = MPI.Status()
    file.Read_at(record * 50, back, status)
    check(status.Get_count(MPI.BYTE), 50)
    check(bytes(back), bytes([65 + (record // ranks + record % ranks) % 26]) * 50)
check(file.Get_info().Get("cache"), "enable")
file.Seek_shared(0)
file.Read_ordered(back)
check(bytes(back), bytes([65 + rank % 26]) * 50)
try:
    file.Read_at(-1, back)
    check("no exception", "an exception")
except MPI.Exception:
    pass
file.Close()
vector.Free()
failures = comm.allreduce(failures)
if rank == 0:
    print("ok" if failures == 0 else f"{failures} failures")
