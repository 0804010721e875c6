! The bindings of mpi_f08: views, all kinds of pointers, split and nonblocking calls, an info with padded hints.
program modern
  use mpi_f08
  use, intrinsic :: iso_fortran_env, only: int64
  implicit none
  type(MPI_File) :: file
  type(MPI_Status) :: status
  type(MPI_Request) :: request
  type(MPI_Info) :: info
  type(MPI_Datatype) :: vector
  integer :: rank, ranks, i, count, failures
  integer(kind=MPI_OFFSET_KIND) :: bytes, place
  integer :: numbers(10), back(10)
  character(len=512) :: path
  character(len=64) :: value
  logical :: found
  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call get_command_argument(1, path)
  failures = 0
  call MPI_Info_create(info)
  value = '   4096'
  call MPI_Info_set(info, 'cache_page_size', value)
  call MPI_File_open(MPI_COMM_WORLD, trim(path), MPI_MODE_CREATE + MPI_MODE_RDWR, info, file)
  call MPI_Info_free(info)
  call MPI_File_get_info(file, info)
  call MPI_Info_get(info, 'cache_page_size', 60, value, found)
  if (found .and. trim(value) /= '4096') failures = failures + 1
  call MPI_Type_vector(10, 1, ranks, MPI_INTEGER, vector)
  call MPI_Type_commit(vector)
  place = 4 * rank
  call MPI_File_set_view(file, place, MPI_INTEGER, vector, 'native', MPI_INFO_NULL)
  numbers = [(rank * 100 + i, i = 1, 10)]
  call MPI_File_write_all(file, numbers, 5, MPI_INTEGER, status)
  call MPI_Get_count(status, MPI_INTEGER, count)
  if (count /= 5) failures = failures + 1
  call MPI_File_iwrite(file, numbers(6:10), 5, MPI_INTEGER, request)
  call MPI_Wait(request, status)
  call MPI_File_get_position(file, place)
  if (place /= 10) failures = failures + 1
  call MPI_File_sync(file)
  place = 0
  back = 0
  call MPI_File_read_at_all_begin(file, place, back, 10, MPI_INTEGER)
  call MPI_File_read_at_all_end(file, back, status)
  if (any(back /= numbers)) failures = failures + 1
  place = 0
  call MPI_File_set_view(file, place, MPI_INTEGER, MPI_INTEGER, 'native', MPI_INFO_NULL)
  call MPI_File_get_size(file, bytes)
  if (bytes /= 40 * ranks) failures = failures + 1
  call MPI_File_seek_shared(file, place, MPI_SEEK_END)
  call MPI_File_write_ordered(file, numbers, rank + 1, MPI_INTEGER, status)
  call MPI_File_get_position_shared(file, place)
  if (place /= 10 * ranks + ranks * (ranks + 1) / 2) failures = failures + 1
  place = 10 * ranks + rank * (rank + 1) / 2
  call MPI_File_read_at(file, place, back, 1, MPI_INTEGER, status)
  if (back(1) /= rank * 100 + 1) failures = failures + 1
  call MPI_File_close(file)
  call MPI_Type_free(vector)
  call MPI_Info_free(info)
  call MPI_Allreduce(MPI_IN_PLACE, failures, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
  if (rank == 0 .and. failures == 0) print '(a)', 'ok'
  if (rank == 0 .and. failures /= 0) print '(i0, a)', failures, ' failures'
  call MPI_Finalize()
end program
