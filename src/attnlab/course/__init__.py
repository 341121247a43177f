"""A course with attnlab: sheets of tasks, marking of students' answers, and new assignments (docs/teaching.md).

sheets.py      a sheet and its tasks: attention by hand, files of predictions, mechanisms as classes
answers.py     which files are students' answers, and what is in them
modules.py     students' modules and functions against a reference with the same weights
classes.py     students' classes in child processes with limits of time and memory
marking.py     every task of every student: points, mistakes, and a summary per task
handout.py     the sheet that students get, without solutions
assignment.py  a new assignment, from the files in template/

Tasks about attention are judged in attnlab.design, in exact arithmetic. Nothing here imports torch unless a sheet needs it.
"""

from attnlab.course.marking import Marks, mark, review

__all__ = ["Marks", "mark", "review"]
