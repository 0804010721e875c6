! The bindings of mpif.h: a file written by records in turn, read back by another rank, errors returned.
program classic
  implicit none
  include 'mpif.h'
  integer :: file, status(MPI_STATUS_SIZE), ierror, rank, ranks, i, count, failures, request
  integer(kind=MPI_OFFSET_KIND) :: place
  double precision :: record(13), back(13)
  character(len=512) :: path
  call MPI_INIT(ierror)
  call MPI_COMM_RANK(MPI_COMM_WORLD, rank, ierror)
  call MPI_COMM_SIZE(MPI_COMM_WORLD, ranks, ierror)
  call GETARG(1, path)
  failures = 0
  call MPI_FILE_OPEN(MPI_COMM_WORLD, path, MPI_MODE_CREATE + MPI_MODE_RDWR, MPI_INFO_NULL, file, ierror)
  if (ierror /= MPI_SUCCESS) failures = failures + 1
  do i = 0, 49
    record = i * 1000 + rank
    place = (i * ranks + rank) * 104
    if (mod(i, 2) == 0) then
      call MPI_FILE_WRITE_AT(file, place, record, 13, MPI_DOUBLE_PRECISION, status, ierror)
    else
      call MPI_FILE_IWRITE_AT(file, place, record, 13, MPI_DOUBLE_PRECISION, request, ierror)
      call MPI_WAIT(request, status, ierror)
    end if
    if (ierror /= MPI_SUCCESS) failures = failures + 1
  end do
  call MPI_BARRIER(MPI_COMM_WORLD, ierror)
  do i = 0, 49
    place = (i * ranks + mod(rank + 1, ranks)) * 104
    call MPI_FILE_READ_AT_ALL(file, place, back, 13, MPI_DOUBLE_PRECISION, status, ierror)
    call MPI_GET_COUNT(status, MPI_DOUBLE_PRECISION, count, ierror)
    if (count /= 13 .or. any(back /= i * 1000 + mod(rank + 1, ranks))) failures = failures + 1
  end do
  place = -1
  call MPI_FILE_READ_AT(file, place, back, 13, MPI_DOUBLE_PRECISION, status, ierror)
  if (ierror == MPI_SUCCESS) failures = failures + 1
  call MPI_FILE_CLOSE(file, ierror)
  if (ierror /= MPI_SUCCESS .or. file /= MPI_FILE_NULL) failures = failures + 1
  call MPI_ALLREDUCE(MPI_IN_PLACE, failures, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierror)
  if (rank == 0 .and. failures == 0) print '(a)', 'ok'
  if (rank == 0 .and. failures /= 0) print '(i0, a)', failures, ' failures'
  call MPI_FINALIZE(ierror)
end program
