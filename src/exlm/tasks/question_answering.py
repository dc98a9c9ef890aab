"""stub"""


class QuestionAnswering: ...


def is_question_answering(task):
    return False


def answer_file(*a): ...
